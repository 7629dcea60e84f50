"""Weft's rendezvous store in Python, without PyTorch.

    store = weft.store.Client("host:29501")

Needs libweft_store.so: in the package, or where WEFT_STORE_LIBRARY says.
"""

from weft.store.client import Client, Server, StoreError, StoreTimeout

__all__ = ["Client", "Server", "StoreError", "StoreTimeout"]
