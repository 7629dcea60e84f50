"""python -m weft.torch.bench: what this backend does on this machine, beside Gloo.

rows.py (a measured row), ranks.py (processes that measure), collectives.py, start.py (groups),
steps.py (training steps), mpi.py (mpi4py, where it is installed), picture.py.
"""
