"""The one name that SGLang takes from here."""


class FlashMLASchedMeta:
    """FlashMLA's schedule of one batch."""
