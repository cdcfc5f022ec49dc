"""A process for each device, with `DistributedDataParallel`.

    KERAS_BACKEND=torch python -m torch.distributed.run --standalone \
        --nproc-per-node 2 torch_ddp.py
"""

import keras
import numpy as np
import torch
import torch.distributed

import keras_vdrop as kv

on_gpu = torch.cuda.is_available()
torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
rank = torch.distributed.get_rank()
ranks = torch.distributed.get_world_size()
device = f"cuda:{rank % torch.cuda.device_count()}" if on_gpu else "cpu"
if on_gpu:
    torch.cuda.set_device(device)

x = np.random.default_rng(0).normal(size=(1024, 16)).astype("float32")
y = (x[:, 0] > 0).astype("int32")
data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
sampler = torch.utils.data.DistributedSampler(data, seed=0)
loader = torch.utils.data.DataLoader(data, batch_size=32, sampler=sampler)

model = keras.Sequential(
    [
        keras.Input((16,)),
        kv.VariationalDense(64, granularity="weight", activation="relu"),
        kv.VariationalDense(2),
    ]
)
kv.set_num_examples(model, len(x))  # Of all ranks together.
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

# It gives all ranks the variables of rank 0.
parallel = torch.nn.parallel.DistributedDataParallel(
    model.to(device), device_ids=[device] if on_gpu else None
)
optimizer = torch.optim.Adam(parallel.parameters(), 0.01)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        # There is noise in training alone, and the KL is in `model.losses`.
        logits = parallel(inputs.to(device), training=True)
        loss = loss_fn(labels.to(device), logits) + sum(model.losses)
        loss.backward()
        optimizer.step()
        # `torch.optim` knows no constraints. The noise and the KL stop at the
        # largest alpha without this; it keeps the variables there too.
        for variable in model.trainable_variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))

print(rank, ranks, "ranks, loss", loss.item())
if rank == 0:
    # The model itself, and not the one of `DistributedDataParallel`.
    kv.summary(model)
    found = kv.predict(model, x[:77], from_logits=True, verbose=0)
    print("mutual information", found.mutual_information.mean())
    model.save("ddp.keras")
torch.distributed.barrier()  # The others wait for rank 0.
torch.distributed.destroy_process_group()
