"""Experiments that anyone can repeat, one file each: `confide study NAME`, in the folder of the repository.

They are no part of the package `confide`, which never imports them.
"""
