"""The router: SGLang's HTTP surface in front of several SGLang servers, one policy deciding between them.

    front ──▶ relay ──▶ dispatch ──▶ core.controller    a plain request: read, decided, sent on, its answer passed on
     │          └──▶ upstream ──▶ pool, exchange          the bytes, one backend at a time
     └─ uvicorn ──▶ app ──▶ relay                         a request that is not plain: the same, through ASGI
                     └────▶ control                       what the router says about itself
            watch ──▶ dispatch                            polls, health, identity
           meters ──▶ books ◀── dispatch                  what was predicted and what came, joules included
          control ──▶ views ──▶ live, explain             what people look at

`running` puts them together. `admission` lets requests in, on both ways, before their body is read, and asks `keyring`
whose they are. `dispatch` and what is under it know nothing of HTTP. docs/relay.md says why there are two ways and what
they cost, docs/security.md what is trusted and what is told to whom.
"""
