"""What runs inside the processes of a script that `bertbench measure` measures.

    on_path/sitecustomize.py  found by Python through PYTHONPATH; has the modules below patch what the script imports
    recorder.py               counts steps, writes the records of a rank
    loads.py                  which batches fed a step, and the wait for them
    watch.py                  torch: optimizers, DataLoader, GradScaler, torch.compile
    frameworks.py             Trainer of Hugging Face and of Lightning, Accelerate's loaders
    trace.py                  the profile of some steps

These modules import the standard library only, since the script's Python need not be bertbench's; torch comes from the
script. They are loaded by their path: a folder on PYTHONPATH must hold nothing that hides a module of the script.
"""
