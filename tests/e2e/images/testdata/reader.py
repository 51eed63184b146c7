"""Reads images as a Dynamo worker does, with the receivers of the ai-dynamo wheel and the real NIXL.

Takes one JSON object a line on standard input and answers each with one on file descriptor 3 (NIXL logs to standard
output). A line holds the extra_args of a request; it may ask to be read late ("after", seconds), at the same time as
the lines that follow ("beside"), or by the bare connector ("plain"). A line may hold a decoded image instead ("decoded").
"""

import asyncio
import hashlib
import importlib.util
import json
import os
import sys
import threading
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_in"))

import dynamo
import numpy
from dynamo import nixl_connect

replies = os.fdopen(3, "w")


def load(name, path):
    """Loads one file of the wheel by itself: its package would import engines."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def receivers():
    common = os.path.join(list(dynamo.__path__)[0], "common")
    for name in ("dynamo.common", "dynamo.common.utils"):
        package = types.ModuleType(name)
        package.__path__ = []
        sys.modules[name] = package
    name = "dynamo.common.utils.nvtx_utils"
    sys.modules["dynamo.common.utils"].nvtx_utils = load(name, os.path.join(common, "utils", "nvtx_utils.py"))
    runtime = types.ModuleType("dynamo.common.utils.runtime")

    def run_async(function, *arguments):
        result = []
        thread = threading.Thread(target=lambda: result.append(asyncio.run(function(*arguments))))
        thread.start()
        thread.join()
        return result[0]

    runtime.run_async = run_async
    sys.modules[runtime.__name__] = runtime
    return (
        load("mm_kwargs_transfer", os.path.join(common, "multimodal", "mm_kwargs_transfer.py")),
        load("media_nixl", os.path.join(common, "utils", "media_nixl.py")),
    )


transfer, media = receivers()
connector = nixl_connect.Connector()
nixl_receiver = None


def reply(**fields):
    replies.write(json.dumps(fields) + "\n")
    replies.flush()


async def plain(request):
    """One read by the connector alone."""
    metadata = nixl_connect.RdmaMetadata.model_validate(request)
    buffer = numpy.zeros(metadata.descriptors[0].size, numpy.uint8)
    descriptor = nixl_connect.Descriptor((buffer.ctypes.data, buffer.nbytes, "cpu", buffer))
    operation = await connector.begin_read(metadata, descriptor)
    await operation.wait_for_completion()
    operation._release()
    return [buffer.tobytes()]


async def pixels(image):
    """A decoded image, whose completion the frontend never hears of."""
    array = await media.read_decoded_media_via_nixl(connector, image)
    return [str(array.shape).encode() + array.tobytes()]


async def read(args):
    global nixl_receiver
    if "mm_kwargs_nixl" in args:
        metadata = transfer.MmKwargsTransferMetadata.model_validate(args["mm_kwargs_nixl"])
        if nixl_receiver is None:
            nixl_receiver = transfer.MmKwargsNixlReceiver()
        receiver = nixl_receiver
    else:
        metadata = transfer.MmKwargsShmTransferMetadata.model_validate(args["mm_kwargs_shm"])
        receiver = transfer.MmKwargsShmReceiver()
    result = await receiver.receive(metadata)
    return [bytes(blob) for blob in result["__pickled_kwargs_item__"]]


async def handle(line):
    try:
        await asyncio.sleep(line.get("after", 0))
        if "decoded" in line:
            work = pixels(line["decoded"])
        elif line.get("plain"):
            work = plain(line["extra_args"]["mm_kwargs_nixl"]["tensor_specs"][0]["serialized_request"])
        else:
            work = read(line["extra_args"])
        blobs = await asyncio.wait_for(work, 20)
        reply(
            id=line["id"],
            sums=[hashlib.sha256(blob).hexdigest() for blob in blobs],
            zeros=[blob.count(0) == len(blob) for blob in blobs],
        )
    except Exception as error:
        reply(id=line["id"], error=repr(error)[:500])


async def main():
    reply(id=-1)
    loop = asyncio.get_running_loop()
    beside = set()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(handle(json.loads(line)))
        if json.loads(line).get("beside"):
            beside.add(task)
            task.add_done_callback(beside.discard)
        else:
            await task
    await asyncio.gather(*beside)
    os._exit(0)  # NIXL's threads would be waited for


asyncio.run(main())
