"""Makes the Python modules of gRPC's messages from their `.proto` file; `--check` compares them.

Run as `python -m tools.protobuf`; it needs `grpcio-tools`, whose compiler writes the types. The module itself
holds the compiled file as text and no code of the compiler, so that it fits any release of protobuf.
"""

import base64
import sys
import tempfile
import textwrap
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

FOLDER = Path(__file__).resolve().parents[1] / "services" / "gateway" / "transports" / "grpc" / "protocol"
SOURCE = FOLDER / "inference.proto"
_MODULE = '''"""Made from inference.proto by `python -m tools.protobuf`; the types are in the `.pyi` file."""

import base64

from services.gateway.transports.grpc.protocol.message_classes import message_classes

_COMPILED = """
{compiled}
"""
globals().update(message_classes(base64.b64decode(_COMPILED)))
'''


def made() -> dict[Path, str]:
    """The text of each file that is made; raises `RuntimeError` if the compiler refuses the source."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "compiled"
        options = [f"--proto_path={FOLDER}", f"--descriptor_set_out={compiled}", f"--pyi_out={folder}"]
        if protoc.main(["protoc", *options, SOURCE.name]):
            raise RuntimeError(f"protoc refuses {SOURCE}")
        (file,) = FileDescriptorSet.FromString(compiled.read_bytes()).file
        text = textwrap.fill(base64.b64encode(file.SerializeToString()).decode(), 100)
        types = (Path(folder) / "inference_pb2.pyi").read_text()
    types = types.replace("_Mapping]", "_Mapping[str, object]]")  # mypy wants the arguments
    return {FOLDER / "inference_pb2.py": _MODULE.format(compiled=text), FOLDER / "inference_pb2.pyi": types}


def main() -> int:
    """Writes the files, or with `--check` prints which differ."""
    check = "--check" in sys.argv[1:]
    stale = {path: text for path, text in made().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if check:
            print(f"{path} is out of date: run `python -m tools.protobuf`", file=sys.stderr)
        else:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
