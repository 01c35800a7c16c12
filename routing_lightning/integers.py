"""Types of whole numbers."""

import torch

INTEGERS = (
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
"""Types of whole numbers of torch, without bool."""
