"""The router: SGLang's HTTP surface in front of several SGLang servers, one policy deciding between them.

    front ──▶ relay ──▶ dispatch ──▶ core.controller    a plain request: read, decided, sent on, its answer passed on
     │          └──▶ upstream ──▶ pool, exchange          the bytes, one backend at a time
     └─ library ──▶ app ──▶ relay                         a request that is not plain: the same, through ASGI
                     └────▶ control                       what the router says about itself
            watch ──▶ dispatch                            polls, identity; health, breaker, outliers: who gets requests
           meters ──▶ books ◀── dispatch                  what was predicted and what came, joules included
          control ──▶ views ──▶ live, explain             what people look at

`generation` puts them together for one configuration; `running` serves one after the other. `admission` lets requests
in, on both ways, before their body is read, and asks `keyring` whose they are. `dispatch` and what is under it know
nothing of HTTP. docs/relay.md says why there are two ways and what they cost, docs/faults.md what happens when
something breaks, docs/security.md what is trusted and what is told to whom.
"""
