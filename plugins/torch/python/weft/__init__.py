"""Weft: communication for training large models.

    import weft.torch     # PyTorch's backend "weft", its stores weft:// and redis://
    import weft.store     # the rendezvous store alone, without PyTorch
"""

__version__ = "0.1.0"
