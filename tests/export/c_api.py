"""A SavedModel in a session of TensorFlow's C API, as servers load it.

Nothing here is TensorFlow's Python: the library of its wheel is called.
"""

from __future__ import annotations

import ctypes
import importlib.util
import pathlib

import numpy as np

_NUMBERS = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int8": 6,
    "int64": 9, "bool": 10, "float16": 19,
}  # fmt: skip
_DTYPES = {number: name for name, number in _NUMBERS.items()}
_STRING, _STRING_BYTES = 7, 24

_POINTER = ctypes.c_void_p


class _Output(ctypes.Structure):
    _fields_ = (("op", _POINTER), ("index", ctypes.c_int))


def _library():
    home = pathlib.Path(importlib.util.find_spec("tensorflow").origin).parent
    for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
        library = ctypes.CDLL(str(home / name), ctypes.RTLD_GLOBAL)
    for name in (
        "NewStatus", "NewGraph", "NewSessionOptions", "AllocateTensor",
        "LoadSessionFromSavedModel", "TensorData", "GraphOperationByName",
    ):  # fmt: skip
        getattr(library, f"TF_{name}").restype = _POINTER
    library.TF_Message.restype = ctypes.c_char_p
    library.TF_Dim.restype = ctypes.c_int64
    return library


class Model:
    """A SavedModel in a session; calls may come from several threads.

    Args:
      path: the folder of the SavedModel.
    """

    def __init__(self, path):
        self._c = _library()
        self._graph = _POINTER(self._c.TF_NewGraph())
        tags = (ctypes.c_char_p * 1)(b"serve")
        status = _POINTER(self._c.TF_NewStatus())
        self._session = _POINTER(
            self._c.TF_LoadSessionFromSavedModel(
                _POINTER(self._c.TF_NewSessionOptions()),
                None,
                str(path).encode(),
                tags,
                1,
                self._graph,
                None,
                status,
            )
        )
        self._check(status)

    def run(self, outputs, inputs):
        """Returns the outputs, by their names, of tensors as NumPy's arrays.

        Args:
          outputs: the tensors by the outputs' names.
          inputs: arrays by the names of tensors.
        """
        feeds = (_Output * len(inputs))(*map(self._output, inputs))
        values = (_POINTER * len(inputs))(*map(self._tensor, inputs.values()))
        fetches = (_Output * len(outputs))(*map(self._output, outputs.values()))
        found = (_POINTER * len(outputs))()
        status = _POINTER(self._c.TF_NewStatus())
        self._c.TF_SessionRun(
            self._session, None, feeds, values, len(inputs), fetches, found,
            len(outputs), None, 0, None, status,
        )  # fmt: skip
        for value in values:
            self._c.TF_DeleteTensor(_POINTER(value))
        self._check(status)
        return dict(zip(outputs, map(self._array, found), strict=True))

    def _check(self, status):
        text = self._c.TF_Message(status).decode()
        failed = self._c.TF_GetCode(status)
        self._c.TF_DeleteStatus(status)
        if failed:
            raise RuntimeError(text)

    def _output(self, tensor):
        name, index = tensor.split(":")
        op = self._c.TF_GraphOperationByName(self._graph, name.encode())
        assert op, tensor
        return _Output(op, int(index))

    def _tensor(self, array):
        dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        if array.dtype.kind in "SO":
            number, size = _STRING, _STRING_BYTES * array.size
        else:
            number, size = _NUMBERS[array.dtype.name], array.nbytes
        tensor = self._c.TF_AllocateTensor(
            number, dims, array.ndim, ctypes.c_size_t(size)
        )
        at = self._c.TF_TensorData(_POINTER(tensor))
        if number != _STRING:
            array = np.ascontiguousarray(array)
            ctypes.memmove(at, array.ctypes.data, size)
            return tensor
        for i, text in enumerate(array.ravel().tolist()):
            string = _POINTER(at + _STRING_BYTES * i)
            self._c.TF_StringInit(string)
            self._c.TF_StringCopy(string, text, ctypes.c_size_t(len(text)))
        return tensor

    def _array(self, tensor):
        tensor = _POINTER(tensor)
        shape = [
            self._c.TF_Dim(tensor, i) for i in range(self._c.TF_NumDims(tensor))
        ]
        array = np.empty(shape, _DTYPES[self._c.TF_TensorType(tensor)])
        at = self._c.TF_TensorData(tensor)
        ctypes.memmove(array.ctypes.data, at, array.nbytes)
        self._c.TF_DeleteTensor(tensor)
        return array
