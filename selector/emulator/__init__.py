"""An SGLang server without a GPU: the simulator's server model on a real clock, behind SGLang's HTTP surface.

clock.py, timer.py    emulated time: callbacks in order, the real clock behind them, a precise timer
engine.py             one server: follows the model boundary by boundary and hands out tokens as they come
generation.py         one request in an engine
gpu.py                one GPU: who works on it, and its energy counter
asks.py, refusals.py  request bodies, read as SGLang reads them and refused as it refuses them
words.py              the text of answers: one short word a token
report.py             what SGLang tells about one request: usage, metadata, speculation counts
chat.py, completion.py, native.py     one API's answer each, as bytes, without I/O; openai.py is shared by two
info.py, serverinfo.py, metrics.py    loads, models and health of a server
app.py, http.py       the ASGI application
serving.py            an ASGI application on a socket, inside the running event loop
fleet.py              every backend of a fleet file, in this process
"""
