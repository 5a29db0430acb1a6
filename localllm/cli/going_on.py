"""How ``ask`` and ``chat`` go on with a stored conversation, and keep what is said."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from localllm import config
from localllm.errors import ModelNotFound, UsageError

if TYPE_CHECKING:
    from localllm.session.recording import Recorder
    from localllm.session.transcripts import Conversation


def resumed(last: bool, id: str | None) -> "Conversation | None":
    """The conversation to go on with, where one was asked for. Raises UsageError where it is not there."""
    if not (last or id is not None):
        return None
    from localllm.session.transcripts import Transcripts

    with Transcripts.open_to_read(config.data_dir()) as transcripts:
        if id is not None:
            return transcripts.find(id)
        if newest := transcripts.newest(1):
            return transcripts.load(newest[0].id)
    raise UsageError("there is no conversation to go on with", "begin one, without -c and --cid")


def model_for(conversation: "Conversation | None", chosen: str | None) -> str | None:
    """The model that was chosen, or else the conversation's. Raises ModelNotFound where that is gone from the disk."""
    if conversation is None or chosen is not None:
        return chosen
    from localllm.models.catalog import full_catalog
    from localllm.models.store import find, missing

    reference, catalog = conversation.summary.model, full_catalog()
    if find(reference, catalog) is None:
        gone = missing(reference, catalog)
        raise ModelNotFound(
            f"the model of conversation {conversation.summary.id} is gone: {gone.message}",
            f"{gone.hint}; or go on with another one: -m NAME",
        )
    return reference


def changed(conversation: "Conversation | None", system: str, model: str) -> str:
    """What is not as it was when the conversation was stored, so that all of it is read anew; "" where nothing is."""
    if conversation is None or not conversation.messages:
        return ""
    from localllm.session.chat import MODEL_CHANGED, SYSTEM_CHANGED

    if conversation.summary.model != model:
        return MODEL_CHANGED
    return SYSTEM_CHANGED if conversation.summary.system != system else ""


def recorder(conversation: "Conversation | None", tell: Callable[[str], None]) -> "Recorder":
    """What keeps a conversation, from its beginning or as it goes on."""
    from localllm.session.recording import Recorder

    return Recorder(config.data_dir(), tell, conversation)
