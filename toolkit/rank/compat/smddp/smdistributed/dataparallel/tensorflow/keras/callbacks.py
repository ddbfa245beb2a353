"""Callbacks for Keras's fit."""

from smdistributed.dataparallel.tensorflow import _library

from toolkit.rank.dataparallel.tf.training import callback_classes

BroadcastGlobalVariablesCallback, MetricAverageCallback = callback_classes(_library)

__all__ = ["BroadcastGlobalVariablesCallback", "MetricAverageCallback"]
