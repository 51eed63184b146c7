"""As much of torch as NIXL's Python API and Dynamo's receivers touch for tensors of bytes on the host, over numpy.

The real package takes gigabytes, and nothing here depends on what it computes.
"""

import numpy


class dtype:
    def __init__(self, name):
        self.name = name
        self.numpy = numpy.dtype(name)

    def __repr__(self):
        return "torch." + self.name


uint8 = dtype("uint8")
int64 = dtype("int64")
float32 = dtype("float32")


class device:
    def __init__(self, kind="cpu"):
        self.type = kind
        self.index = None


class Tensor:
    is_cuda = False
    is_xpu = False
    device = device()

    def __init__(self, array):
        self.array = array

    def __getitem__(self, key):
        return Tensor(self.array[key])

    def __len__(self):
        return len(self.array)

    @property
    def shape(self):
        return self.array.shape

    def contiguous(self):
        return Tensor(numpy.ascontiguousarray(self.array))

    def is_contiguous(self):
        return bool(self.array.flags.c_contiguous)

    def data_ptr(self):
        return self.array.ctypes.data

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def get_device(self):
        return -1

    def numpy(self):
        return self.array


def _shape(shape):
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape


def zeros(*shape, dtype=float32):
    return Tensor(numpy.zeros(_shape(shape), dtype.numpy))


def empty(*shape, dtype=float32):
    return Tensor(numpy.empty(_shape(shape), dtype.numpy))


def frombuffer(buffer, dtype=uint8):
    return Tensor(numpy.frombuffer(buffer, dtype.numpy))
