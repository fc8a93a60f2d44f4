# SPDX-License-Identifier: Apache-2.0
"""Implementation of tools/fl.py. Standard library only: it runs before anything is installed.

Reading order: ``cli`` (commands), ``environments`` (what each environment holds and how it is built), ``model``,
``suite`` (which tests run where); ``process``, ``stamps`` and ``paths`` serve them.
"""
