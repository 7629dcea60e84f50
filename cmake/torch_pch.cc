// Holds the precompiled header of torch/torch.h that every LibTorch target reuses.
