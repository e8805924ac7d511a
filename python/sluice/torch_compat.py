"""torch.save() and torch.load() with tensors in a .tensors file beside the pickle."""
from .tensorizer.torch_compat import tensorizer_loading as loading
from .tensorizer.torch_compat import tensorizer_saving as saving

__all__ = ["loading", "saving"]
