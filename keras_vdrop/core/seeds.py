"""Keys of the noise, different wherever the noise has to be."""

import collections
import contextlib
import contextvars
import hashlib
import numbers
import random
import types
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core.validation import invalid

# The keys that are held, by the identity of their state, each with the
# number of draws so far. A context of its own for each thread.
_held: contextvars.ContextVar[Mapping] = contextvars.ContextVar(
    "keras_vdrop_held_keys", default=types.MappingProxyType({})
)


def check_seed(seed: Any) -> int | None:
    if seed is None:
        return None
    if not isinstance(seed, numbers.Integral) or isinstance(seed, bool):
        raise invalid("seed", "an integer or None", seed)
    return int(seed)


def recomputed(name: str) -> RuntimeError:
    """The error for noise that the backward pass would draw again."""
    return RuntimeError(
        f"Noise of '{name}' is drawn inside a call that the backward pass "
        "computes again, where it would be other noise. This happens in a "
        "model that is made in a `keras.RematScope`, and in a call through "
        "`keras.remat`, `jax.checkpoint` or `torch.utils.checkpoint`. "
        "Rematerialize the variational layers instead, which keep their "
        "noise: make each of them in a `keras.RematScope`, and the model "
        "outside of it."
    )


def derived_seed(seed: int | None, salt: Any) -> int | None:
    """A seed for a part of what a seed was given for.

    Hashed, because equal seeds would be equal noise, and `seed + number` would
    be a seed of something else too.
    """
    if seed is None:
        return None
    digest = hashlib.sha256(f"{seed} {salt}".encode()).digest()
    return int.from_bytes(digest[:4], "little") % 2**31


@backend.traced_once
def _held_by(state: int) -> dict | None:
    """The key that is held for the state with this identity, and its draws."""
    return _held.get().get(state)


class NoiseGenerator:
    """A generator of normal noise with a state that is a variable.

    It differs from `keras.random.SeedGenerator` in what weight noise needs:

    - A seed has 62 bits, which are hashed, so that neighbouring seeds and
      equal seeds with another salt have nothing in common.
    - Replicas of `tf.distribute` and ranks of `torch.distributed` draw
      different noise.
    - A key can be held, so that a call can be repeated with the same noise.

    Args:
        state: A variable of shape `(3,)`, initialized by `InitialState`.
    """

    def __init__(self, state: Any):
        self.state = state

    def next_key(self) -> Any:
        """A new key, or one that follows from the key that is held."""
        held = _held_by(id(self.state))
        if held is not None:
            held["draws"] += 1
            return backend.fold_key(held["key"], held["draws"])
        state = ops.convert_to_tensor(self.state)
        following = backend.state_after(state)
        if backend.is_recomputed(state, following):
            raise recomputed(self.state.path)
        # Before the assignment, which torch does in place.
        key = backend.draw_key(state)
        backend.assign_state(self.state, state, following)
        return key

    def normal(self, shape: Any, dtype: str) -> Any:
        """Standard normal noise, new on each call."""
        return backend.normal(self.next_key(), shape, dtype)

    def split(self, count: Any) -> Any:
        """Keys for `hold`, one in each row."""
        return backend.split_key(self.next_key(), count)

    @contextlib.contextmanager
    def hold(self, key: Any) -> Iterator[None]:
        """The draws inside this scope follow from `key` alone."""
        held = {**_held.get(), id(self.state): {"key": key, "draws": 0}}
        token = _held.set(held)
        try:
            yield
        finally:
            _held.reset(token)


class InitialState(keras.initializers.Initializer):
    """The state of a generator: two words of a seed, and no draws yet.

    Args:
        seed: Integer or `None`, for a random seed.
        salt: String. Generators with the same seed and other salts draw
            different noise.
    """

    def __init__(self, seed: int | None, salt: str = ""):
        # From the same source as Keras's, which `set_random_seed` seeds.
        seed = random.getrandbits(62) if seed is None else seed
        digest = hashlib.sha256(f"{seed} {salt}".encode()).digest()
        bits = int.from_bytes(digest[:8], "little")
        # 31 bits, for backends with signed words.
        self.words = [bits % 2**31, (bits >> 32) % 2**31, 0]

    def __call__(self, shape: Any = None, dtype: Any = None) -> Any:
        return ops.convert_to_tensor(self.words, dtype or backend.SEED_DTYPE)


def tell_apart(weights: Iterable[Any]) -> None:
    """Gives random weights with equal seeds, but for the first, other noise.

    Which noise that is depends on their order alone, so that the same model has
    the same noise again. A state that has been drawn from, or that comes from a
    file, stays.
    """
    seen: collections.Counter = collections.Counter()
    for weight in weights:
        if weight.seed is None:
            continue
        number = seen[weight.seed, weight.salt]
        seen[weight.seed, weight.salt] += 1
        if not number:
            continue
        first = InitialState(weight.seed, weight.salt)
        weight.salt = f"{weight.salt} {number}"
        if not weight.built:
            continue
        (state,) = backend.to_numpy([weight.seed_state])
        if state.tolist() == first.words:
            weight.seed_state.assign(InitialState(weight.seed, weight.salt)())
