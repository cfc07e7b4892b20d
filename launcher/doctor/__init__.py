"""Is this machine, or the world of ranks this was started on, fit for fedcore? Each thing tried.

`fedcore doctor`, `torchrun ... -m launcher.doctor`, `srun ... python -m launcher.doctor`. torch and
our own packages are imported by the checks, not here: one that is broken is a finding.
"""
