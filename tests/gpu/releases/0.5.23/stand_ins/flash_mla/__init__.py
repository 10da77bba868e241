"""A stand-in for sgl-flash-mla, which SGLang 0.5.23 imports on every GPU when it captures the draft's graphs.

No model of the kit has its attention.
"""


def fused_norm_rope_attn_rope_cast(*_args, **_kwargs):
    """FlashMLA's kernel, which the bundle does not carry."""
    raise NotImplementedError("the bundle carries no FlashMLA: use another attention backend")
