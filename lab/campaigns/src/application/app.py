"""Notes: an ordinary Django application with login, redirects and static files.

    app.py prepare DATABASE              makes the database and the users anna and ben
    app.py serve DATABASE NAME RECORD    serves on a port of loopback and prints it

Each request is recorded in the file RECORD, one JSON object per line, as the application saw it.
"""

import json
import os
import sys

import django
from django.conf import settings

COMMAND, DATABASE = sys.argv[1:3]
NAME, RECORD = sys.argv[3:5] if COMMAND == "serve" else ("", os.devnull)
HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = """<!DOCTYPE html><html lang="en"><title>Notes</title>
<link rel="stylesheet" href="/static/style.css"><script src="/static/app.js" defer></script>
<h1>Notes</h1>{% block body %}{% endblock %}<footer>served by NAME</footer>"""
HOME = """{% extends "page" %}{% block body %}{% if user.is_authenticated %}
<p id="user">Signed in as {{ user.username }}</p>
<form method="post" action="/logout/">{% csrf_token %}<button id="logout">Log out</button></form>
{% else %}<p id="user">Nobody is signed in</p><a id="login" href="/notes/">Your notes</a>
{% endif %}{% endblock %}"""
NOTES = """{% extends "page" %}{% block body %}<p id="user">Signed in as {{ user.username }}</p>
<ul id="notes">{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>
<form method="post">{% csrf_token %}<input id="note" name="note"><button id="add">Add</button></form>
<form method="post" action="/logout/">{% csrf_token %}<button id="logout">Log out</button></form>
{% endblock %}"""
LOGIN = """{% extends "page" %}{% block body %}<form method="post">{% csrf_token %}
{{ form.as_p }}<button id="enter">Log in</button></form>{% endblock %}"""

settings.configure(
    SECRET_KEY="the same for all three origins",
    ALLOWED_HOSTS=["www.app.test"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": DATABASE,
            "OPTIONS": {"timeout": 20},
        }
    },
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
    ],
    MIDDLEWARE=[
        "__main__.record",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {
                "context_processors": ["django.contrib.auth.context_processors.auth"],
                "loaders": [
                    (
                        "django.template.loaders.locmem.Loader",
                        {
                            "page": PAGE.replace("NAME", NAME),
                            "home": HOME,
                            "notes": NOTES,
                            "registration/login.html": LOGIN,
                        },
                    )
                ],
            },
        }
    ],
    ROOT_URLCONF="__main__",
    LOGIN_URL="/login/",
    LOGIN_REDIRECT_URL="/notes/",
    LOGOUT_REDIRECT_URL="/",
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"),
    SESSION_COOKIE_SECURE=True,
    CSRF_COOKIE_SECURE=True,
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    USE_TZ=True,
)
django.setup()

from django.contrib.auth import views
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.servers import basehttp
from django.http import HttpResponsePermanentRedirect
from django.shortcuts import redirect, render
from django.urls import path, re_path
from django.views.static import serve


def record(get_response):
    def middleware(request):
        response = get_response(request)
        seen = {name: request.META.get(name) for name in NAMES}
        seen["origin"], seen["method"], seen["path"] = NAME, request.method, request.path
        with open(RECORD, "a", encoding="utf-8") as file:
            file.write(json.dumps(seen) + "\n")
        return response

    return middleware


NAMES = [
    "HTTP_HOST",
    "HTTP_X_FORWARDED_FOR",
    "HTTP_X_FORWARDED_PROTO",
    "HTTP_X_FORWARDED_HOST",
    "HTTP_FORWARDED",
]


def home(request):
    return render(request, "home")


@login_required
def notes(request):
    known = request.session.setdefault("notes", [])
    if request.method == "POST":
        request.session["notes"] = known + [request.POST["note"]]
        return redirect("/notes/")
    return render(request, "notes", {"notes": known})


def old(request):
    """A redirect with the whole URL, as many applications and login services make it."""
    return HttpResponsePermanentRedirect(request.build_absolute_uri("/"))


urlpatterns = [
    path("", home),
    path("notes/", notes),
    path("old/", old),
    path("login/", views.LoginView.as_view()),
    path("logout/", views.LogoutView.as_view()),
    re_path("^static/(?P<path>.*)$", serve, {"document_root": os.path.join(HERE, "static")}),
]

if COMMAND == "prepare":
    call_command("migrate", verbosity=0)
    for name in ["anna", "ben"]:
        User.objects.create_user(name, password=name + "'s password")
else:
    server = basehttp.ThreadedWSGIServer(("127.0.0.1", 0), basehttp.WSGIRequestHandler)
    server.daemon_threads = True
    server.set_app(basehttp.get_internal_wsgi_application())
    print(server.server_port, flush=True)
    server.serve_forever()
