"""Stand-ins for what an example finds in AWS's image or on the network: scripts/official-examples puts this folder first in PYTHONPATH.

TOOLKIT_EXAMPLE_STAND_INS names those in use, and the table of docs/lab/official-examples.md calls them edits: each is a change
that a user would have to make to the script on a machine without CUDA and without the internet.

cuda: the script's own questions for CUDA are answered as if there were one device, which is the CPU
cloud: boto3, botocore and the command aws, which say yes and copy nothing; SM_MODULE_DIR, which is s3:// on SageMaker
torchvision, torchnet, apex, flash_attn: the packages' names, as far as the examples use them without CUDA
keras_mnist: tf.keras.datasets.mnist.load_data gives the digits of the channel
"""

import importlib.abc
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = os.environ.get("TOOLKIT_EXAMPLE_STAND_INS", "").split()


def cuda(torch):
    script_folder = os.environ.get("SM_CODE_DIR") or os.environ.get("TOOLKIT_EXAMPLE_CODE", "/nowhere")
    real_available, real_device = torch.cuda.is_available, torch.device

    def asked_by_the_script():
        name = sys._getframe(2).f_code.co_filename
        return os.path.realpath(name).startswith(os.path.realpath(script_folder) + os.sep) or (
            sys._getframe(2).f_globals.get("__name__") == "__main__"
        )

    class Meta(type):
        def __instancecheck__(cls, value):
            return isinstance(value, real_device)

        def __call__(cls, *words, **keywords):
            if words and isinstance(words[0], str) and words[0].startswith("cuda"):
                return real_device("cpu")
            return real_device(*words, **keywords)

    class Device(metaclass=Meta):
        pass

    def is_available():
        return asked_by_the_script() or real_available()

    torch.cuda.is_available = is_available
    if not real_available():
        Device.__name__ = "device"
        torch.device = Device
        for name in (
            "synchronize",
            "set_device",
            "empty_cache",
            "reset_max_memory_allocated",
            "reset_max_memory_cached",
        ):
            setattr(torch.cuda, name, lambda *_words, **_named: None)  # One function each: torch.compile lists them.
        torch.cuda.current_device = lambda: 0
        torch.Tensor.cuda = lambda tensor, *_words, **_named: tensor
        torch.nn.Module.cuda = lambda module, *_words, **_named: module


def keras_mnist(module):
    def load_data(path="mnist.npz"):  # noqa: ARG001
        import numpy

        with numpy.load(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "mnist.npz")) as file:
            return (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])

    module.load_data = load_data


PATCHES = {"cuda": {"torch": cuda}, "keras_mnist": {"tf_keras.src.datasets.mnist": keras_mnist}}


class Loader(importlib.abc.Loader):
    def __init__(self, loader, patch):
        self.loader, self.patch = loader, patch

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        self.patch(module)


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, patches):
        self.patches, self.asking = patches, set()

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002
        if name not in self.patches or name in self.asking:
            return None
        self.asking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asking.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader, self.patches[name])
        return spec


if "cloud" in NAMES:
    os.environ["SM_MODULE_DIR"] = "s3://bucket/job/source/sourcedir.tar.gz"
for stand_in in NAMES:
    folder = os.path.join(os.path.dirname(HERE), stand_in)
    if os.path.isdir(folder):
        sys.path.insert(0, folder)
    if stand_in in PATCHES:
        sys.meta_path.insert(0, Finder(dict(PATCHES[stand_in])))
