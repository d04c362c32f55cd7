"""Experiments that anyone can repeat, one file each: `confide study NAME`, in the folder of the repository.

`runner` trains, judges and writes pages. `parts` holds what single studies try or compute.

They are no part of the package `confide`, which never imports them.
"""
