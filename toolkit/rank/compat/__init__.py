"""The import names of old systems, for scripts that still use them; each system has a folder, `compat/NAME`.

A folder holds the modules that a script may import (`smddp/smdistributed/dataparallel/...`). Neither the folder nor
the old system's outermost name is a package of its own, so an installed original replaces it whole. `train` lists
the folders that a job asks for in TOOLKIT_COMPAT_PATH (toolkit/train/launchers/compat.py). The rank hook puts
them at the end of sys.path, after all installed packages. Nothing else makes them importable, because many libraries
behave differently when they find an old name.

Modules here hold no logic: they re-export the other folders of toolkit/rank (dataparallel, xla, profiler). They may
act when they are imported, because the systems that they replace did.
"""
