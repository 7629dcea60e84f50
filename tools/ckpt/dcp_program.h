// The part of weft-ckpt that PyTorch does: a program for its Python, given by -c.
//
//   to EXCHANGE FOLDER     the tensors of a safetensors file into a torch.distributed.checkpoint
//   from FOLDER EXCHANGE   the way back
//   to-model EXCHANGE FOLDER STEP    the files model, exp_avg and exp_avg_sq / model.safetensors of
//                                    the exchange, by model_dcp.h's names
//   from-model FOLDER EXCHANGE NAME  the way back, and the file "step"; NAME: of the first tensor
//   check                  nothing: whether this Python has what the others need
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
    from torch.distributed.checkpoint import metadata as dcp_metadata
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


# In place of getattr, by which Python 3.11 pickles a member of an enumeration.
def member_of(kind, name):
    if kind is dcp_metadata._MEM_FORMAT_ENCODING:
        return kind[name]
    raise pickle.UnpicklingError(f"its .metadata asks for builtins.getattr of {kind}, which is no "
                                 "part of the format; nothing of it was run")


class FormatUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("builtins", "getattr"):
            return member_of
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


def empty(folder, name, entry):
    if not isinstance(entry, TensorStorageMetadata):
        sys.exit(f"{folder}: '{name}' is no tensor, and has no place in a checkpoint of ours; where "
                 "tensors have the names of a Hugging Face model, --config says what run it is to be")
    dtype = entry.properties.dtype
    if dtype not in NAMES:
        sys.exit(f"{folder}: tensor '{name}' is {dtype}, which has no place in a checkpoint")
    return torch.empty(entry.size, dtype=dtype)


def from_dcp(folder, exchange):
    reader = Reader(folder)
    entries = reader.read_metadata().state_dict_metadata
    state = {name: empty(folder, name, entry) for name, entry in entries.items()}
    dcp.load(state, storage_reader=reader, no_dist=True)
    write_file(exchange, state)


STATES = ("exp_avg", "exp_avg_sq")


def to_model_dcp(exchange, folder, step):
    exchange = pathlib.Path(exchange)
    model = read_file(exchange / "model/model.safetensors")
    state = {f"model.{name}": tensor for name, tensor in model.items()}
    for which in STATES:
        if (exchange / which).is_dir():
            for name, tensor in read_file(exchange / which / "model.safetensors").items():
                state[f"optim.state.{name}.{which}"] = tensor
                state[f"optim.state.{name}.step"] = torch.tensor(float(step))
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, sync_files=True), no_dist=True)


def prefix_of(entries, suffix):
    found = [name[:-len(suffix)] for name in entries
             if name.endswith(suffix) and name[:-len(suffix)][-1:] in ("", ".")]
    return min(found, key=len) if found else None


def from_model_dcp(folder, exchange, first):
    reader = Reader(folder)
    entries = reader.read_metadata().state_dict_metadata
    prefix = prefix_of(entries, first)
    if prefix is None:
        names = ", ".join(sorted(entries)[:5])
        sys.exit(f"{folder} has no tensor that ends with '{first}', as the config's model has one; "
                 f"it has {names}, ...")
    states = prefix_of(entries, f"{first}.exp_avg")
    # What is below a longer prefix of states is no parameter, whatever the prefix of these is.
    is_state = lambda name: states is not None and states != prefix and name.startswith(states)
    parts = {"model": {name[len(prefix):]: name for name in entries
                       if name.startswith(prefix) and not is_state(name)
                       and isinstance(entries[name], TensorStorageMetadata)}}
    if states is not None:
        for which in STATES:
            parts[which] = {name[len(states):-len(which) - 1]: name for name in entries
                            if name.startswith(states) and name.endswith("." + which)}
        if states == prefix:
            parts["model"] = {key: name for key, name in parts["model"].items()
                              if not key.endswith((".exp_avg", ".exp_avg_sq", ".step"))}
    wanted = {name for part in parts.values() for name in part.values()}
    step = f"{states}{first}.step"
    if states is not None:
        if step not in entries:
            sys.exit(f"{folder} has Adam's states, but no '{step}'")
        wanted.add(step)
    state = {name: empty(folder, name, entries[name]) for name in wanted}
    dcp.load(state, storage_reader=reader, no_dist=True)
    for which, names in parts.items():
        (pathlib.Path(exchange) / which).mkdir()
        write_file(pathlib.Path(exchange) / which / "model.safetensors",
                   {key: state[name] for key, name in names.items()})
    if states is not None:
        (pathlib.Path(exchange) / "step").write_text(str(round(state[step].item())))


try:
    {"to": to_dcp, "from": from_dcp, "to-model": to_model_dcp,
     "from-model": from_model_dcp, "check": lambda: None}[sys.argv[1]](*sys.argv[2:])
except Exception as error:
    sys.exit(f"{sys.argv[2]}: {type(error).__name__}: {error}".splitlines()[0])
)python";

}  // namespace weft::ckpt

#endif  // WEFT_TOOLS_CKPT_DCP_PROGRAM_H_
