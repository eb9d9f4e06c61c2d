"""A program for `Host.call`: calls the function with the arguments that its argument holds."""

import base64
import pickle
import sys

if __name__ == "__main__":
    function, arguments = pickle.loads(base64.b64decode(sys.argv[1]))
    function(*arguments)
