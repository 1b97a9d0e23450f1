"""The router: SGLang's HTTP surface in front of several SGLang servers, one policy deciding between them.

    app ──▶ relay ──▶ dispatch ──▶ core.controller      a request: read, decided, sent on, its answer passed on
     │        └──▶ upstream, answerstream                 the bytes, one backend at a time
     │      watch ──▶ dispatch                            polls, health, identity
     └──▶ control                                         what the router says about itself

`running` puts them together. Only `app`, `client`, `relay` and `upstream` touch the data path; `dispatch` and what is
under it know nothing of HTTP.
"""
