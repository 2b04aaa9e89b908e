"""Train DFlash drafters: block-diffusion draft models that read the hidden states of a frozen target.

Tensor letters, used throughout the package. A suffix such as `states_BLX` names the axes in order.

Sequences and draft blocks:
    B   batch rows (sequences)
    L   context length in tokens
    N   draft blocks (anchors) per row
    A   draft blocks in the batch, B * N
    K   slots in a block (the block size); slot 0 is the anchor
    W   predicted slots in a block, K - 1
    M   predicted slots in the batch, A * W
    Q   draft slots (queries) per row, N * K
    S   keys and values per row, L + Q
    U   distinct block inputs per row, N + 1: one token per anchor, then the mask token
    T   tokens in one pass; while decoding, the new tokens
    P   positions in a KV cache
    I   tiles of queries in the attention mask
    J   tiles of keys in the attention mask
Features:
    V   vocabulary size
    D   hidden size
    X   all captured layers side by side: number of captured layers * D
    H   attention heads; in GatedDeltaNet: value heads
    G   KV heads; in GatedDeltaNet: key heads
    E   head dimension; in GatedDeltaNet: of keys
    F   head dimension of values in GatedDeltaNet
    C   convolution channels in GatedDeltaNet
    R   channels that rotary position embedding rotates
"""

__version__ = "0.1.0"
