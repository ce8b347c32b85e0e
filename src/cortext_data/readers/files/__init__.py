"""Access to files of others: MATLAB, NWB and pickles, read without trusting them."""
