"""The sidecar: observes an SGLang server, asks a policy, acts, and shows what it did."""
