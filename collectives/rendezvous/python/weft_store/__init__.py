"""Weft's rendezvous store in Python.

    import weft_store.rendezvous                     # init_method="weft://..." and "redis://..."
    store = weft_store.Client("host:29501")          # without PyTorch

Needs libweft_store.so: in this folder, or where WEFT_STORE_LIBRARY says.
"""

from weft_store.client import Client, Server, StoreError, StoreTimeout

__all__ = ["Client", "Server", "StoreError", "StoreTimeout"]
