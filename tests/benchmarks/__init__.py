"""Scripts that print how fast and how true the simulator is, and what a policy makes of it."""
