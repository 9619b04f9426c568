"""blocks.py FOLDER SEED: writes FOLDER/blocks.gguf, a tensor of random bytes for each type that molt reads, and for each FOLDER/TYPE,
the little-endian float32 values that the gguf package gives it."""
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type

folder, rng = Path(sys.argv[1]), np.random.default_rng(int(sys.argv[2]))
np.seterr(all="ignore")  # scales are any float16: subnormal, infinite, NaN
writer = gguf.GGUFWriter(folder / "blocks.gguf", "none")
for name in "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K".split():
    elems, size = GGML_QUANT_SIZES[Type[name]]
    blocks = rng.integers(0, 256, (64, 8 * size * (256 // elems)), dtype=np.uint8)
    writer.add_tensor(name, blocks, raw_dtype=Type[name])
    gguf.quants.dequantize(blocks, Type[name]).astype("<f4").tofile(folder / name)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
