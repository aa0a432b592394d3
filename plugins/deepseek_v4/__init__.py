"""The DeepSeek-V4 family, shared by its target and its drafter. Not a plugin; imports only `core`.

What a model is: config (the numbers), linear (weight containers and the `Weights` protocol), ops (operations as data),
reference (what each means), kernels (how a model gets them).

What it computes, by section of the spec: hyper 5.2, rotary 5.4, attention 5.5 - 5.8, compressor 5.7, experts 5.9,
block 5.1, model (the forward), step (what a query at a position sees), state (caches and rollback, section 6), exact
(the probe behind `row_exact`).

What lies on disks: headers, names, contract, formats, checkpoint, weights (`Weights` of files), memory, convert,
recipe, tools; encoding turns conversations into prompts.
"""
