"""What `import torch` runs, by the entry point torch.backends: after it init_process_group("weft")
works without an import of ours. It costs no more than a table entry, and never raises."""


def load() -> None:
    try:
        import torch.distributed as dist

        if dist.is_available():
            from weft._registration import register

            register()
    except Exception:  # noqa: BLE001, S110 -- PyTorch is more than this backend
        pass
