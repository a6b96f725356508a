// Writes a day against a drive's rating.
#include "sizing/drive_wear.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace penstock::train {
namespace {

TEST(DriveWearTest, TerabytesADayAreBytesOfAStepOverItsTime) {
  // T0_3B: 12 bytes a parameter in 22.3 s.
  const Bytes written{12 * 2783959040ULL};
  const DriveWear wear = WearOf(written, 22.3, DriveRating{600});
  EXPECT_NEAR(wear.terabytes_a_day, 129.44, 0.005);
  EXPECT_NEAR(*wear.days_to_rating, 600 / 129.44, 0.001);
  EXPECT_EQ(DriveWearText(wear, DriveRating{600}),
            "129.4 TB written a day; the rating of 600 TB is reached after 4.6 days");
  EXPECT_EQ(DriveWearText(WearOf(written, 22.3, {}), {}), "129.4 TB written a day");
  EXPECT_FALSE(WearOf(0_B, 1, DriveRating{600}).days_to_rating.has_value());
}

TEST(DriveWearTest, EachOfSeveralDrivesHasTheRating) {
  const Bytes written{12 * 2783959040ULL};
  const DriveWear wear = WearOf(written, 22.3, DriveRating{600}, /*drives=*/4);
  EXPECT_NEAR(wear.terabytes_a_day, 129.44, 0.005);
  EXPECT_NEAR(*wear.days_to_rating, 4 * 600 / 129.44, 0.001);
  EXPECT_EQ(DriveWearText(wear, DriveRating{600}),
            "129.4 TB written a day to 4 drives; the rating of 600 TB each is reached after 18.5 "
            "days");
  EXPECT_EQ(DriveWearJson(wear, DriveRating{600})["drives"], 4);
}

TEST(DriveWearTest, ReadsBothFormsOfARating) {
  EXPECT_EQ(ParseDriveRating("600TBW")->terabytes, 600);
  EXPECT_NEAR(ParseDriveRating("3DWPD,1.92TB,5y")->terabytes, 3 * 1.92 * 5 * 365, 1e-9);
  for (const std::string text : {"", "600", "600TB", "-1TBW", "0TBW", "3DWPD", "3DWPD,1.92TB",
                                 "3DWPD,1.92TB,5y,", "infTBW", "nanTBW", "1e999TBW"}) {
    const Result<DriveRating> rating = ParseDriveRating(text);
    ASSERT_FALSE(rating.ok()) << text;
    EXPECT_EQ(rating.error().message, "\"" + text +
                                          "\" is no rating of a drive; write 600TBW, or "
                                          "3DWPD,1.92TB,5y (drive writes a day, capacity, years)");
  }
}

TEST(DriveWearTest, TheJsonHasNullWhereThereIsNoRating) {
  EXPECT_EQ(DriveWearJson(WearOf(1_KiB, 1, {}), {})["days_to_rating"], nullptr);
  EXPECT_EQ(DriveWearJson(WearOf(1_KiB, 1, DriveRating{2}), DriveRating{2})["rating_terabytes"], 2);
}

}  // namespace
}  // namespace penstock::train
