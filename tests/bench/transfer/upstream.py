"""Hands 40 tensors of 20 MB over with Dynamo's connector, which nobody reads, and prints what that did to the memory of
the process. With "released" each is released when its time is over, with "kept" nobody does that."""

import asyncio
import gc
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "e2e", "images", "testdata", "stand_in"))

import torch
from dynamo import nixl_connect


def resident():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) // 1024


async def main(release):
    connector = nixl_connect.Connector()
    await connector._create_connection()
    before = resident()
    waiting = []
    for _ in range(40):
        tensor = torch.frombuffer(bytearray(20 << 20), dtype=torch.uint8)
        operation = await connector.create_readable(nixl_connect.Descriptor(tensor))
        operation.metadata()
        if release:
            try:
                await asyncio.wait_for(operation.wait_for_completion(), 0.05)
            except asyncio.TimeoutError:
                pass
            finally:
                operation.__exit__(None, None, None)
        else:
            waiting.append(asyncio.ensure_future(operation.wait_for_completion()))
        del operation, tensor
    await asyncio.sleep(0.2)
    gc.collect()
    print(f"RSS +{resident() - before} MB")
    sys.stdout.flush()
    os._exit(0)  # what waits never ends


asyncio.run(main(sys.argv[1] == "released"))
