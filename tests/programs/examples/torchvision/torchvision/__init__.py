"""A stand-in for torchvision: MNIST of the channel, ToTensor, Normalize and Compose."""

import os
import types

import numpy
import torch


class MNIST(torch.utils.data.Dataset):
    def __init__(self, root, train=True, download=False, transform=None):  # noqa: ARG002
        with numpy.load(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "mnist.npz")) as file:
            self.images, self.labels = (
                file[name] for name in (("x_train", "y_train") if train else ("x_test", "y_test"))
            )
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return (image if self.transform is None else self.transform(image)), int(self.labels[index])


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image):
        return torch.from_numpy(image).float().div(255)[None]


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]

    def __call__(self, image):
        return (image - self.mean) / self.std


datasets = types.SimpleNamespace(MNIST=MNIST)
transforms = types.SimpleNamespace(Compose=Compose, Normalize=Normalize, ToTensor=ToTensor)
