"""Model weights that a sluice daemon of this machine keeps in shared memory.

    import sluice
    model = sluice.attach("gpt-j-6b")             # may still be loading
    weight = model["lm_head.weight"].numpy()      # waits for this tensor alone
    tensor = sluice.attach("gpt-j-6b", writable=True)["lm_head.weight"].torch()

Nothing is copied, and no framework is imported unless it is used.
"""
from ._error import SluiceError
from ._library import library as _library
from ._pool import Deposit, Model, Room, Tensor, attach

__version__ = _library.sluice_version().decode()
__all__ = ["Deposit", "Model", "Room", "SluiceError", "Tensor", "attach"]
