"""The GSPC19 schedulers, composed of exchangeable parts over a workflow and resource managers. Pure.

`shoal.schedulers` is their public face.
"""
