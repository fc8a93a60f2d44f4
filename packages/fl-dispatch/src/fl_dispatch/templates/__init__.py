# SPDX-License-Identifier: Apache-2.0
"""The files of a vendor package, as `fl-dispatch new-vendor` renders them for the name `my_chip`."""
