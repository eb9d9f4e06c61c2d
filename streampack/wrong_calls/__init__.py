"""Words for calls that users of other libraries try first: each error gives the call to write.

Loaded only to raise such an error.
"""
