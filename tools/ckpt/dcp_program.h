// The part of weft-ckpt that PyTorch does: a program for its Python, given by -c.
//
//   to EXCHANGE FOLDER     the tensors of a safetensors file into a torch.distributed.checkpoint
//   from FOLDER EXCHANGE   the way back
//
// A folder's .metadata is a pickle. It is read by an Unpickler that knows the classes of the format
// and nothing else, so that a folder from somebody else runs no code of theirs; shards are read
// with weights_only, which PyTorch does by itself.
//
// It ends with status 0, or with 1 and one line on standard error.
#ifndef WEFT_TOOLS_CKPT_DCP_PROGRAM_H_
#define WEFT_TOOLS_CKPT_DCP_PROGRAM_H_

namespace weft::ckpt {

inline constexpr char kDcpProgram[] = R"python(
import json, math, mmap, pathlib, pickle, struct, sys

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import StorageMeta, TensorStorageMetadata
except ImportError as error:
    sys.exit(f"{sys.executable} has no PyTorch ({error}); name another by --python")

TYPES = {"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16,
         "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "F32": torch.float32,
         "I64": torch.int64, "F64": torch.float64}
NAMES = {dtype: name for name, dtype in TYPES.items()}


def read_file(path):
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    length = struct.unpack("<Q", data[:8])[0]
    state = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = TYPES[entry["dtype"]]
        if begin == end:
            state[name] = torch.empty(entry["shape"], dtype=dtype)
            continue
        flat = torch.frombuffer(data, dtype=dtype, offset=8 + length + begin,
                                count=(end - begin) // dtype.itemsize)
        state[name] = flat.reshape(entry["shape"])
    return state


def write_file(path, state):
    header, at = {}, 0
    order = sorted(state, key=lambda name: (-state[name].dtype.itemsize, name))
    for name in order:
        tensor = state[name]
        size = math.prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(state[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def to_dcp(exchange, folder):
    dcp.save(read_file(exchange), storage_writer=dcp.FileSystemWriter(folder, sync_files=True),
             no_dist=True)


KNOWN = {("torch.distributed.checkpoint.metadata", name) for name in (
    "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
    "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING")}
KNOWN |= {("torch.distributed.checkpoint.filesystem", "_StorageInfo"), ("torch", "Size"),
          ("torch.serialization", "_get_layout"), ("collections", "OrderedDict"),
          ("pathlib", "PosixPath"), ("pathlib", "PurePosixPath")}


class FormatUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in KNOWN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"its .metadata asks for {module}.{name}, which is no part "
                                     "of the format; nothing of it was run")


class Reader(dcp.FileSystemReader):
    def read_metadata(self, *args, **kwargs):
        with open(pathlib.Path(self.path) / ".metadata", "rb") as file:
            metadata = FormatUnpickler(file).load()
        for info in metadata.storage_data.values():
            if pathlib.PurePath(info.relative_path).name != info.relative_path:
                raise ValueError(f"a shard is '{info.relative_path}', outside of the folder")
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def from_dcp(folder, exchange):
    reader = Reader(folder)
    state = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            sys.exit(f"{folder}: '{name}' is no tensor, and has no place in a checkpoint of ours")
        dtype = entry.properties.dtype
        if dtype not in NAMES:
            sys.exit(f"{folder}: tensor '{name}' is {dtype}, which has no place in a checkpoint")
        state[name] = torch.empty(entry.size, dtype=dtype)
    dcp.load(state, storage_reader=reader, no_dist=True)
    write_file(exchange, state)


try:
    {"to": to_dcp, "from": from_dcp}[sys.argv[1]](*sys.argv[2:])
except Exception as error:
    sys.exit(f"{sys.argv[2]}: {type(error).__name__}: {error}".splitlines()[0])
)python";

}  // namespace weft::ckpt

#endif  // WEFT_TOOLS_CKPT_DCP_PROGRAM_H_
