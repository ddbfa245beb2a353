"""The import names of old systems, for scripts that still use them: a folder for each, `compat/NAME`.

A folder holds what a script may import (`smddp/smdistributed/dataparallel/...`). Neither it nor the old system's
outermost name is a package of its own, so that an installed real one takes its place whole. The launcher side names
the folders that a job asks for in TOOLKIT_COMPAT_PATH (toolkit/launchers/compat.py); the rank hook puts them at the end
of sys.path, behind everything that is installed. Nothing else makes them importable: many libraries change their ways
because an old name can be found.

Modules here hold no logic: they hand on what lies in dataparallel/ and the other rooms of the script side. Unlike those
they may act when they are imported, because the systems they stand for did.
"""
