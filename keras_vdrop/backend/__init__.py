"""What differs between the backends of Keras, one file for each.

Every file defines the same names:

- `SEED_DTYPE`: the dtype of the state of a generator of noise;
- `FUSES`: whether operations on whole arrays are compiled into one;
- `VECTORIZES_NOISE`: whether `at_once` takes functions that draw noise;
- `with_gradient`: gives a function a derivative of its own;
- `value_of`: the value of a variable;
- `times`, `times_rest`, `plus`, `horner`, `at_least`, `at_most`, `zero_where`,
  `total`: arithmetic that saves memory where the backend allows it;
- `hard_limit`: a minimum whose gradient is zero beyond the limit;
- `unless_above`, `remember_limit`: leave out the work of a limit where nothing
  is above it;
- `with_backward`, `without_outward`: the same for a gradient that depends on
  its own sign, because it may lead back to a limit and not away from it;
- `fused_moments`: both products of local reparameterization as one operation;
- `on_shards`, `map_examples`, `layout_like`: examples and variables on several
  devices;
- `data_shards`, `spans_processes`, `outputs_here`, `outside_scope`,
  `whole_where_uneven`: what to do around a call where there are several
  devices;
- `is_recomputed`: whether a state is drawn from in a call that the backward
  pass computes again;
- `draw_key`, `shared_key`, `fold_key`, `split_key`, `normal`: keys of random
  numbers, made of a state, and the numbers of a key;
- `replica`: which of several replicas runs in this thread;
- `state_after`, `assign_state`: the state of a generator after a draw;
- `on_values`: a function of the values of a tensor with ragged rows;
- `random_state`: a scope in which random numbers without a seed have one;
- `to_numpy`: arrays of tensors, wherever these are;
- `compiled`: a function of tensors, compiled;
- `is_accelerator`, `predict_step`, `at_once`: many samples of a model by one
  program;
- `states_of`, `for_each_state`: states of a generator, and a function of each;
- `traced_once`: has a compiler take a result for a constant;
- `gradient_function`: a compiled gradient of the loss of a model.
"""

from types import ModuleType

from keras_vdrop.backend import missing

try:
    import keras
except ModuleNotFoundError as error:
    name = missing.backend_of(error)
    if name is None:
        raise
    raise ImportError(missing.message(name)) from None

_chosen: ModuleType
if keras.backend.backend() == "jax":
    from keras_vdrop.backend import jax as _chosen
elif keras.backend.backend() == "tensorflow":
    from keras_vdrop.backend import tensorflow as _chosen
elif keras.backend.backend() == "torch":
    from keras_vdrop.backend import torch as _chosen
else:
    from keras_vdrop.backend import default as _chosen

SEED_DTYPE = _chosen.SEED_DTYPE
FUSES = _chosen.FUSES
VECTORIZES_NOISE = _chosen.VECTORIZES_NOISE
with_gradient = _chosen.with_gradient
on_values = _chosen.on_values
value_of = _chosen.value_of
times = _chosen.times
times_rest = _chosen.times_rest
plus = _chosen.plus
horner = _chosen.horner
at_least = _chosen.at_least
at_most = _chosen.at_most
total = _chosen.total
hard_limit = _chosen.hard_limit
unless_above = _chosen.unless_above
remember_limit = _chosen.remember_limit
with_backward = _chosen.with_backward
without_outward = _chosen.without_outward
zero_where = _chosen.zero_where
fused_moments = _chosen.fused_moments
on_shards = _chosen.on_shards
map_examples = _chosen.map_examples
layout_like = _chosen.layout_like
data_shards = _chosen.data_shards
spans_processes = _chosen.spans_processes
outputs_here = _chosen.outputs_here
outside_scope = _chosen.outside_scope
whole_where_uneven = _chosen.whole_where_uneven
is_recomputed = _chosen.is_recomputed
state_after = _chosen.state_after
assign_state = _chosen.assign_state
replica = _chosen.replica
draw_key = _chosen.draw_key
shared_key = _chosen.shared_key
fold_key = _chosen.fold_key
split_key = _chosen.split_key
normal = _chosen.normal
random_state = _chosen.random_state
states_of = _chosen.states_of
for_each_state = _chosen.for_each_state
is_accelerator = _chosen.is_accelerator
predict_step = _chosen.predict_step
at_once = _chosen.at_once
to_numpy = _chosen.to_numpy
compiled = _chosen.compiled
traced_once = _chosen.traced_once
gradient_function = _chosen.gradient_function
