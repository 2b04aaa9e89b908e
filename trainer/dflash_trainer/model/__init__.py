"""The drafter: its layers, masks, anchors and the blocks it drafts.

Tensor letters, the same in every file of the trainer (a suffix such as `states_BLX` names the axes in order):

B batch rows, L length of the context, N draft blocks (anchors) of a row, K block size, W predicted slots of a block
(K - 1), Q draft queries (N * K), S keys and values (L + Q), T new tokens of a decoding step, P positions of a KV cache,
U block inputs (N + 1), M predicted slots of a batch, V vocabulary, D hidden size, X captured layers * D, H heads,
G KV heads (of the delta net: key heads), E head dimension, F value dimension of the delta net, C its convolution
channels, R rotated channels, I query tiles, J key tiles.
"""

from dflash_trainer.model.build import build_drafter
from dflash_trainer.model.drafter import Drafter
from dflash_trainer.model.shape import DrafterShape

__all__ = ["Drafter", "DrafterShape", "build_drafter"]
