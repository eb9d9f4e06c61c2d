from streampack.films.source import Films as Films
from streampack.images.own import ImageModel as ImageModel
from streampack.images.own import MediaModel as MediaModel
from streampack.images.source import Images as Images
from streampack.sounds.source import Sounds as Sounds
