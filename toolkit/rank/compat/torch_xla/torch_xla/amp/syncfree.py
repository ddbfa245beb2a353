from torch.optim import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW"]
