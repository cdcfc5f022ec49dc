"""Seeds of the noise, different wherever the noise has to be."""

import contextlib
import numbers

import keras

from keras_vdrop.validation import invalid

# Knuth's multiplicative hash: neighbours come to lie millions of draws apart.
STEP = 2654435761


class NoiseSeedGenerator(keras.random.SeedGenerator):
    """A `keras.random.SeedGenerator` that is safe for weight noise.

    - Replicas of `tf.distribute` and ranks of `torch.distributed` draw
      different noise. (On JAX, Keras traces one program for all devices.)
    - Layers with seeds 1, 2, 3... draw different noise on torch too, where
      Keras adds the seed to the number of draws, so that layer 1 would repeat
      the noise of layer 2 one step later.
    - A rematerialized call can be run again with the noise it had.

    Args:
        seed: Integer or `None`, for a random seed.
    """

    def __init__(self, seed=None):
        if seed is not None:
            if not isinstance(seed, numbers.Integral):
                raise invalid("seed", "an integer or None", seed)
            seed = int(seed) * STEP % 2**31
        super().__init__(seed)
        self._held = None

    def next(self, ordered=True):
        if self._held is None:
            return _on_this_replica(super().next(ordered))
        seed, number = self._held
        self._held = (seed, number + 1)
        offset = keras.ops.convert_to_tensor([number * STEP % 2**31, 0])
        return seed + keras.ops.cast(offset, seed.dtype)

    @contextlib.contextmanager
    def hold(self, seed):
        """The draws inside this scope follow from `seed` alone."""
        before = self._held
        self._held = None if seed is None else (seed, 0)
        try:
            yield
        finally:
            self._held = before

    def split(self, count):
        """Seeds for `hold`, one in each row."""
        seeds = keras.random.randint(
            (count, 2), 0, 2**31 - 1, dtype="int32", seed=self
        )
        return keras.ops.cast(seeds, self.state.dtype)


def _on_this_replica(seed):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            return tf.random.experimental.stateless_fold_in(
                seed, replica.replica_id_in_sync_group
            )
    if keras.backend.backend() == "torch":
        import torch.distributed

        if torch.distributed.is_available() and (
            torch.distributed.is_initialized()
        ):
            rank = torch.distributed.get_rank()
            offset = seed.new_tensor([rank * STEP % 2**31, 0])
            return seed + offset
    return seed
