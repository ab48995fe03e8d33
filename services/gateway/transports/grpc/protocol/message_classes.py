"""Makes the classes of the messages out of a compiled `.proto` file.

They stand in a pool of their own: a process may also hold another library's classes of the same protocol,
such as those of `tritonclient`, and protobuf's default pool takes each name once.
"""

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

POOL = DescriptorPool()


def message_classes(compiled: bytes) -> dict[str, type[Message]]:
    """The classes by their names.

    Args:
        compiled: A serialized `FileDescriptorProto`, which joins the pool.
    """
    file = POOL.AddSerializedFile(compiled)  # type: ignore[no-untyped-call]
    return {name: GetMessageClass(found) for name, found in file.message_types_by_name.items()}
